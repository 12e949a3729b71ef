"""Tables: whole in a pipe, within the terminal's width on one."""

from hypothesis import given
from hypothesis import strategies as st

from surrogate.cli.table import fitted, to_table

RECORDS = [
    {
        "kernel": f"void cudnn::detail::implicit_convolve_sgemm<float, {i}>",
        "total_us": 12345.6 * i,
        "calls": i,
        "bound": "latency-bound",
    }
    for i in range(1, 4)
]
WORDS = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=60)


def test_a_pipe_gets_whole_cells() -> None:
    assert RECORDS[0]["kernel"] in to_table(RECORDS)


def test_a_terminal_gets_names_cut_in_the_middle_and_numbers_whole() -> None:
    lines = to_table(RECORDS, 60).splitlines()
    assert lines[0].split() == ["kernel", "total_us", "calls", "bound"]
    assert all(len(line) <= 60 for line in lines)
    assert lines[1].startswith("void cudnn") and "…" in lines[1] and "12346" in lines[1]
    assert lines[3].split("  ")[0].endswith("3>")


def test_columns_that_do_not_fit_go_on_below_behind_the_first() -> None:
    records = [{"name": "a", **{f"figure_{i}": i * 1.5 for i in range(10)}}]
    parts = to_table(records, 40).split("\n\n")
    assert len(parts) > 1 and all(part.startswith("name") for part in parts)
    assert sum(part.split("\n")[0].count("figure_") for part in parts) == 10


def test_cells() -> None:
    record = {
        "a": None,
        "b": True,
        "c": 2.734e5,
        "d": 0.00012346,
        "e": [1, 2.5],
        "f": {"x": 1.0},
        "g": "one\ntwo",
    }
    assert to_table([record]).splitlines()[1].split("  ")[:3] == ["–", "yes", "273400"]
    assert to_table([record]).split()[7:] == [
        "–",
        "yes",
        "273400",
        "0.0001235",
        "1,",
        "2.5",
        "x",
        "1",
        "one",
        "two",
    ]
    assert to_table([]) == "(no rows)"


@given(
    st.lists(st.fixed_dictionaries({"key": WORDS, "text": WORDS, "n": st.integers(0, 10**9)}), min_size=1),
    st.integers(50, 120),
)
def test_every_line_fits_and_no_row_is_lost(records: list[dict[str, object]], width: int) -> None:
    lines = to_table(records, width).split("\n")
    assert max(map(len, lines)) <= width
    assert len(lines) == len(records) + 1
    assert all(str(record["n"]) in "\n".join(lines) for record in records)


def test_long_notes_below_a_printed_table_are_wrapped_at_words() -> None:
    note = "excluded FFT: needs 94371840 bytes of workspace (90.0 MiB), the limit is 16777216 bytes"
    assert fitted(f"title\n\n{note}", 60).split("\n") == [
        "title", "", "excluded FFT: needs 94371840 bytes of workspace (90.0 MiB),", "  the limit is 16777216 bytes",
    ]  # fmt: skip


def test_a_printed_table_is_laid_out_anew_between_its_title_and_notes() -> None:
    text = "\n".join(["title of it", to_table(RECORDS), "note: none"])
    assert fitted(text, 200) == text
    lines = fitted(text, 60).splitlines()
    assert (lines[0], lines[-1]) == ("title of it", "note: none")
    assert lines[1:-1] == to_table(RECORDS, 60).splitlines()
