"""Files of a run: whole or as they were, readable or refused in a sentence."""

from __future__ import annotations

import os

import pytest

from composerl._files import read_json, read_yaml, replace_file, write_json, write_text


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "ä.json"
    write_json(path, {"old": 1})

    def half(file):
        assert file.suffix == ".json"  # many writers choose their format by it
        file.write_text("{")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_file(path, half)
    assert read_json(path) == {"old": 1}
    write_text(path, '{"new": "ä"}')
    assert path.read_bytes() == '{"new": "ä"}'.encode()
    assert os.listdir(tmp_path) == ["ä.json"]


def test_a_directory_is_made_as_a_whole(tmp_path):
    path = tmp_path / "data"

    def write(place, parts):
        place.mkdir()
        for number in range(parts):
            (place / str(number)).touch()
        assert parts < 3

    with pytest.raises(AssertionError):
        replace_file(path, lambda place: write(place, 3))
    assert not list(tmp_path.iterdir())
    replace_file(path, lambda place: write(place, 2))
    assert sorted(os.listdir(path)) == ["0", "1"]
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("read", [read_json, read_yaml])
@pytest.mark.parametrize("content", [b"", b"[1]", b'"text"', b"{1: [", b"\xff"])
def test_what_is_no_mapping_is_refused_in_a_sentence(tmp_path, read, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=r"file (is not valid|must hold) [^\n]*$"):
        read(tmp_path / "file")
