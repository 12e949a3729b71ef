"""Memory is bounded, whatever a caller asks; caches that threads share hold what they were given."""

import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from surrogate.features.caches import MAX_TEXT, BoundedCache, cached_texts
from surrogate.features.description import Description
from surrogate.features.families import DescribedFamily, operator
from tests.memory import KINDS, MAX_GROWTH_KB, growth_kb

CHEAP = ("gpu_names", "own_gpus")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in CHEAP else pytest.mark.slow) for each in KINDS]
)
def test_the_memory_of_many_questions_is_flat(name: str) -> None:
    assert growth_kb(name) < MAX_GROWTH_KB


def test_the_oldest_values_make_room() -> None:
    cache = BoundedCache[str, str](10, len)
    for text in ("aaaa", "bbbb", "cc", "aaa"):
        assert cache.put(text[0], text) == text
    assert [cache.get(key) for key in "abc"] == ["aaa", "bbbb", "cc"]
    cache.put("d", "dd")  # b, the oldest, makes room
    assert [cache.get(key) for key in "abcd"] == ["aaa", None, "cc", "dd"]
    cache.put("e", "e" * 20)
    assert len(cache) == 1 and cache.get("e") == "e" * 20
    assert len(pickle.loads(pickle.dumps(cache))) == 0


def test_long_texts_are_not_kept() -> None:
    cache, calls = BoundedCache[object, int](10), []
    for key in (
        "a" * (MAX_TEXT + 1),
        (1, ("b" * (MAX_TEXT + 1),)),
        operator("relu", n=1, c=1, h=1, w=1, variant="c" * 5000),
        DescribedFamily(Description("own", ("m",), {"block": (1,)}, {"tag": ()})).problem(
            {"m": 1}, {"tag": "d" * 5000}
        ),
    ):
        assert cache.put(key, 1) == 1
    assert len(cache) == 0

    @cached_texts(10)
    def length(text: str) -> int:
        calls.append(text)
        return len(text)

    for text in ("abc", "abc", "a" * 5000, "a" * 5000):
        assert length(text) == len(text)
    assert calls == ["abc", "a" * 5000, "a" * 5000]


class Slow(int):
    """A key whose comparisons run in Python, so that threads change inside the dictionary's own operations."""

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    def __hash__(self) -> int:
        return int(self) % 3


@pytest.fixture
def eager_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_threads_share_a_cache_that_drops_values() -> None:
    cache, begin, count = BoundedCache[Slow, int](4), Barrier(8), 1500

    def work(seed: int) -> int:
        begin.wait()
        right = 0
        for i in range(count):
            key = (seed * 7 + i) % 9
            kept = cache.get(Slow(key))
            right += (cache.put(Slow(key), key) if kept is None else kept) == key
        return right

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [count] * 8
    assert 0 < len(cache) <= 4
