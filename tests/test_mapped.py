"""The file that holds a model's vectors beside the index: never the only copy, never trusted further than it fits."""

import os

import numpy as np
import pytest

from lnk.folder import Folder
from lnk.memory import mapped
from lnk.memory.vectors import Matrix, quantize

TOLD = mapped.Told("0123456789ab", 3, 16)


def _matrix(count: int, dims: int = 16, seed: int = 1) -> Matrix:
    numbers = np.random.default_rng(seed).standard_normal((count, dims), dtype=np.float32)
    matrix = Matrix(dims)
    matrix.add(
        range(1, 2 * count, 2), [number // 3 for number in range(count)], quantize([row.tobytes() for row in numbers])
    )
    return matrix


@pytest.fixture
def state(tmp_path):
    with Folder.open(str(tmp_path)) as folder:
        yield folder


@pytest.mark.requirement("VECT-4")
def test_what_is_mapped_finds_what_was_written_and_more_comes_behind(state):
    matrix = _matrix(500)
    mapped.write(state, TOLD, matrix.parts())
    again = Matrix(16, first=mapped.opened(state, TOLD))
    assert (again.count, again.last) == (500, 999)
    (query,) = quantize([np.random.default_rng(9).standard_normal(16, dtype=np.float32).tobytes()])
    assert again.nearest(query, 40) == matrix.nearest(query, 40)
    for each in (matrix, again):
        each.add([2000, 2001], [7, 8], [query, bytes(16)])
    assert again.nearest(query, 3)[0].row == 2000
    assert again.nearest(query, 40) == matrix.nearest(query, 40)
    mapped.write(state, TOLD, again.parts())
    assert Matrix(16, first=mapped.opened(state, TOLD)).nearest(query, 40) == matrix.nearest(query, 40)
    assert sorted(os.listdir(state.path)) == [TOLD.file]


@pytest.mark.requirement("VECT-4", "INDEX-12")
@pytest.mark.parametrize("told", [TOLD._replace(name="ffffffffffff"), TOLD._replace(dims=8)])
def test_the_file_of_another_index_or_model_is_not_taken(state, told):
    mapped.write(state, TOLD, _matrix(10).parts())
    assert mapped.opened(state, TOLD)
    os.rename(f"{state.path}/{TOLD.file}", f"{state.path}/{told.file}")
    assert mapped.opened(state, told) is None


@pytest.mark.requirement("INDEX-12")
@pytest.mark.parametrize("harm", ["cut", "longer", "empty", "no head", "folder", "link"])
def test_a_file_that_is_not_whole_is_not_taken_and_made_again(state, harm):
    mapped.write(state, TOLD, _matrix(10).parts())
    path = f"{state.path}/{TOLD.file}"
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    if harm == "folder":
        os.mkdir(path)
    elif harm == "link":
        with open(f"{state.path}/elsewhere", "wb") as file:
            file.write(data)
        os.symlink("elsewhere", path)
    else:
        with open(path, "wb") as file:
            file.write({"cut": data[:-1], "longer": data + b"x", "empty": b"", "no head": data[:20]}[harm])
    assert mapped.opened(state, TOLD) is None
    if harm != "folder":
        mapped.write(state, TOLD, _matrix(10).parts())
        assert mapped.opened(state, TOLD)


@pytest.mark.requirement("CONTRACT-15")
def test_the_vector_of_what_was_deleted_is_overwritten_for_all_who_have_the_file_mapped(state):
    matrix = _matrix(100)
    mapped.write(state, TOLD, matrix.parts())
    part = mapped.opened(state, TOLD)
    assert part is not None
    before = part.rows.copy()
    mapped.blank(state, TOLD, [1, 51, 50, 199, 4000])  # 50 and 4000 are not there
    changed = [place for place in range(100) if not np.array_equal(before[place], part.rows[place])]
    assert changed == [0, 25, 99]
    assert not part.rows[changed].any()


@pytest.mark.requirement("INDEX-12")
def test_all_are_taken_away_with_their_index(state):
    mapped.write(state, TOLD, _matrix(3).parts())
    mapped.write(state, TOLD._replace(model=4), _matrix(3).parts())
    with open(f"{state.path}/index.lock", "w"):
        pass
    mapped.forget(state)
    assert os.listdir(state.path) == ["index.lock"]
