"""Figures of what-ifs: in the report's style, every name and part of the path in them."""

import json
import xml.etree.ElementTree as ElementTree

from surrogate.report.style import BLUE
from surrogate.trace import read_trace
from surrogate.trace.graph import graph_of
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import evaluate, setting_of, what_if
from surrogate.trace.whatif.output import critical_path_svg, times_svg


def test_figures_name_every_answer_and_part(make_trace, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(make_trace(steps=2)))
    one = profile(read_trace(path))
    chosen = [what_if("faster-kernels=2"), what_if("faster-host=4")]
    answers = evaluate(graph_of(one.trace, one.layers), chosen, setting_of(one), together=True)
    times, parts = times_svg(answers), critical_path_svg(answers)
    for drawn in (times, parts):
        words = " ".join(" ".join(ElementTree.fromstring(drawn).itertext()).split())
        assert "as measured" in words and all(one.name.split("=")[0] in words for one in answers[:2])
        assert BLUE in drawn and "dc:date" not in drawn
    assert "waiting" in parts and "kernel" in parts
    assert (times, parts) == (times_svg(answers), critical_path_svg(answers))
