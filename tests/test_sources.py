"""Which files are found, and how their bytes become text."""

import os
import subprocess

import pytest

from datasette_agent_memory.sources import SourceFile, UnreadableFile, find_files, read_source, sha256


def text_of(path, content):
    path.write_bytes(content)
    return read_source(SourceFile("x.md", path)).text


@pytest.mark.parametrize(
    "content, text",
    [
        (b"plain\n", "plain\n"),
        (b"a\r\nb\r\n", "a\r\nb\r\n"),
        (b"\xef\xbb\xbf# Title", "# Title"),
        ("# 标题".encode("utf-16"), "# 标题"),
        (b"\xfe\xff" + "é".encode("utf-16-be"), "é"),
        ("# 标题".encode("utf-32"), "# 标题"),
        (b"caf\xe9", "caf\ufffd"),
        (b"", ""),
    ],
)
def test_bytes_become_text(tmp_path, content, text):
    assert text_of(tmp_path / "a.md", content) == text


def test_binary_is_refused(tmp_path):
    with pytest.raises(UnreadableFile, match="binary"):
        text_of(tmp_path / "a.md", b"PNG\0\0")


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "a.md")
    with pytest.raises(UnreadableFile, match="not a regular file"):
        read_source(SourceFile("a.md", tmp_path / "a.md"))


def test_a_file_that_vanished_is_named(tmp_path):
    with pytest.raises(UnreadableFile, match="no such file"):
        read_source(SourceFile("a.md", tmp_path / "a.md"))


def test_links_are_named_and_not_followed(workspace, tmp_path):
    root = workspace({"memory/a.md": "a"})
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "s.md").write_text("secret")
    (root / "memory/leak.md").symlink_to(secret / "s.md")
    (root / "memory/folder").symlink_to(secret)
    (root / "memory/loop").symlink_to(root)
    found = find_files(root)
    assert [file.path for file in found.files] == ["memory/a.md"]
    assert [skipped.path for skipped in found.skipped] == ["memory/folder", "memory/leak.md", "memory/loop"]


def test_odd_names_are_found(workspace):
    names = ["a b.md", "#%?.md", 'it\'s "q".md', "🎉.md", "会议.md", "line\nbreak.md", "<b>.md"]
    root = workspace({f"memory/{name}": "x" for name in names})
    assert sorted(file.path for file in find_files(root).files) == sorted(f"memory/{name}" for name in names)


def test_a_name_that_is_not_utf8_is_skipped(workspace):
    root = workspace({"memory/a.md": "x"})
    with open(os.fsencode(root) + b"/memory/\xff.md", "w") as file:
        file.write("x")
    found = find_files(root)
    assert [file.path for file in found.files] == ["memory/a.md"]
    assert found.skipped[0].reason == "its name is not UTF-8"
    found.skipped[0].path.encode()


def test_a_folder_with_the_name_of_a_file_is_looked_into(workspace):
    root = workspace({"memory/x.md/y.md": "y"})
    assert [file.path for file in find_files(root).files] == ["memory/x.md/y.md"]


def test_hard_links_are_files_of_their_own(workspace):
    root = workspace({"MEMORY.md": "x"})
    os.link(root / "MEMORY.md", root / "memory.md")
    assert [file.path for file in find_files(root).files] == ["MEMORY.md", "memory.md"]


def test_an_extra_path_in_another_is_found_once(workspace, tmp_path):
    root = workspace({"memory/a.md": "a"})
    (tmp_path / "more/deep").mkdir(parents=True)
    (tmp_path / "more/deep/b.md").write_text("b")
    found = find_files(root, [tmp_path / "more", tmp_path / "more/deep", root / "memory"])
    assert [file.path for file in found.files] == ["memory/a.md", "../more/deep/b.md"]


def test_a_file_named_memory_is_no_memory_folder(workspace):
    root = workspace({"memory": "x", "a.md": "a"})
    assert [file.path for file in find_files(root).files] == ["a.md"]


def test_folders_may_lie_deep(tmp_path):
    folder = tmp_path / "deep"
    folder.mkdir()
    current = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=current)
        below = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)
    try:
        found = find_files(folder)
    finally:
        # Deeper than Python's own clean-up can go.
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    assert found.files == [] and all(len(skipped.reason) < 100 for skipped in found.skipped)


def test_lone_surrogates_hash_as_the_peer_hashes_them():
    assert sha256("a\ud83d") == sha256("a\ufffd")
