"""Search through the engine's real program."""

import pytest


@pytest.mark.requirement("RANK-2")
def test_a_word_in_the_title_counts_more_than_one_in_the_text(place, session):
    for number in range(12):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe lease was mentioned here in passing, number {number}.\n")
    place.write("memory/titled.md", "# Lease\n\nSigned with the owner of the flat in March, for four years.\n", at=1_600_000_000)
    assert session().paths("lease")[0] == "memory/titled.md"
