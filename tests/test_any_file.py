"""Whatever lies in the folder: it is indexed to the letter or named, and costs no other file anything."""

import os

import pytest
from hypothesis import given, settings
from odd_files import CONTENTS, NAMES, ODD, check, survive


def test_odd_contents(workspace, index, database, agreement, tiny):
    root = workspace({f"memory/{name}": content for name, content in ODD.items()})
    report = index(root, tiny)
    check(root, database, report)
    agreement()
    assert report.skipped == []
    assert {one.path for one in report.guessed} == {"memory/gbk.md"}
    again = index(root, tiny)
    assert (again.files_unchanged, again.chunks_added, again.chunks_removed) == (len(ODD), 0, 0)


def test_odd_names(workspace, index, database, agreement, tiny):
    root = workspace({f"memory/{name}": f"text of {name}" for name in NAMES})
    report = index(root, tiny)
    check(root, database, report)
    agreement()
    assert report.files_added == len(NAMES)
    assert index(root, tiny).files_unchanged == len(NAMES)


def test_what_is_no_file_is_named(workspace, index, rows, tmp_path):
    root = workspace({"memory/a.md": "heron", "memory/folder.md/inside.md": "kettle"})
    os.mkfifo(root / "memory/pipe.md")
    (root / "memory/device.md").symlink_to("/dev/zero")
    (root / "memory/png.md").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(200)))
    report = index(root)
    assert {one.path: one.reason for one in report.skipped} == {
        "memory/device.md": "a symbolic link out of the folder, which --follow-links follows",
        "memory/pipe.md": "not a regular file",
        "memory/png.md": "binary",
    }
    report = index(root, follow_links=True)
    assert ("memory/device.md", "not a regular file") in {(one.path, one.reason) for one in report.skipped}
    assert rows("select count(*) from files") == [(2,)]


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file"), OSError(5, "Input/output error")])
def test_a_file_that_vanishes_or_fails_while_it_is_read(workspace, index, rows, monkeypatch, error):
    root = workspace({"a.md": "alpha", "b.md": "beta", "c.md": "gamma"})
    index(root)
    opened = os.open

    def fails(path, *args, **kwargs):
        if str(path).endswith("b.md"):
            raise error
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", fails)
    workspace({"a.md": "changed", "c.md": "changed too"})
    report = index(root)
    assert report.files_updated == 2 and [one.path for one in report.skipped] == ["b.md"]
    # What is gone is gone; what cannot be read stays as it was.
    kept = not isinstance(error, FileNotFoundError)
    assert rows("select count(*) from chunks where path = 'b.md'") == [(int(kept),)]


@settings(max_examples=60, deadline=None)
@given(contents=CONTENTS, again=CONTENTS)
def test_any_content(contents, again):
    """A first run, and one after every file has changed."""
    survive(contents, again)
