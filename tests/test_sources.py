"""Which files are found, and how their bytes become text."""

import os
import subprocess

import pytest

from datasette_agent_memory.scan import ScanOptions, find_files
from datasette_agent_memory.sources import SourceFile, UnreadableFile, read_source, sha256


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
        (b"caf\xe9", "café"),
        (b"", ""),
    ],
)
def test_bytes_become_text(tmp_path, content, text):
    assert text_of(tmp_path / "a.md", content) == text


def test_binary_is_refused(tmp_path):
    with pytest.raises(UnreadableFile, match="binary"):
        text_of(tmp_path / "a.md", b"\x89PNG\r\n\x1a\n" + bytes(range(64)))


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


class TestLinks:
    def paths(self, root, extra=(), **options):
        return [file.path for file in find_files(root, extra, ScanOptions(**options)).files]

    def test_a_link_to_a_file_in_the_memory_is_no_second_one(self, workspace):
        root = workspace({"memory/z.md": "z", "memory/deep/y.md": "y"})
        (root / "memory/a.md").symlink_to("z.md")
        (root / "memory/b").symlink_to("deep")
        found = find_files(root)
        assert [file.path for file in found.files] == ["memory/z.md", "memory/deep/y.md"]
        assert found.skipped == [], "it is indexed"

    def test_a_link_to_what_has_no_name_in_the_memory_is_followed(self, workspace):
        root = workspace({"memory/z.md": "z", "notes/n.md": "n", "plan.txt": "p"})
        (root / "MEMORY.md").symlink_to("plan.txt")
        (root / "memory/notes").symlink_to("../notes")
        (root / "memory/again").symlink_to("../notes")
        assert self.paths(root) == ["memory/z.md", "MEMORY.md", "memory/again/n.md"]

    def test_links_in_circles_end(self, workspace):
        root = workspace({"memory/a/x.md": "x"})
        (root / "memory/a/up").symlink_to("..")
        (root / "memory/self.md").symlink_to("self.md")
        (root / "memory/one.md").symlink_to("two.md")
        (root / "memory/two.md").symlink_to("one.md")
        found = find_files(root)
        assert [file.path for file in found.files] == ["memory/a/x.md"]
        reasons = {one.path: one.reason for one in found.skipped}
        assert set(reasons) == {"memory/a/up", "memory/one.md", "memory/self.md", "memory/two.md"}
        assert "leads nowhere" in reasons["memory/one.md"]

    def test_a_broken_link_is_named(self, workspace):
        root = workspace({"memory/a.md": "a"})
        (root / "memory/gone.md").symlink_to("nowhere.md")
        (skipped,) = find_files(root).skipped
        assert "leads nowhere: no such file" in skipped.reason

    def test_links_out_are_followed_when_asked(self, workspace, tmp_path):
        (tmp_path / "vault/deep").mkdir(parents=True)
        (tmp_path / "vault/deep/v.md").write_text("v")
        root = workspace({"MEMORY.md": "x"})
        (root / "memory").symlink_to(tmp_path / "vault")
        assert self.paths(root) == ["MEMORY.md"]
        assert self.paths(root, follow_links=True) == ["MEMORY.md", "memory/deep/v.md"]
        assert self.paths(root, extra=[tmp_path / "vault"]) == ["MEMORY.md", "../vault/deep/v.md"]


class TestIgnored:
    def test_other_peoples_folders_are_not_memory(self, workspace):
        root = workspace(
            {
                f"memory/{folder}/x.md": "x"
                for folder in (".git", "node_modules", ".venv", "deep/venv", "__pycache__", ".obsidian")
            }
        )
        workspace({"memory/env/pyvenv.cfg": "", "memory/env/x.md": "x"})
        workspace({"memory/repo/.git/config": "", "memory/repo/x.md": "x"})
        assert [file.path for file in find_files(root).files] == ["memory/.obsidian/x.md", "memory/repo/x.md"]

    def test_gitignore_is_heeded_when_asked(self, workspace):
        root = workspace(
            {
                ".gitignore": "drafts/\n*.tmp.md\n/memory/private.md\n",
                "memory/.gitignore": "!keep.tmp.md\n",
                "memory/a.md": "a",
                "memory/b.tmp.md": "b",
                "memory/keep.tmp.md": "k",
                "memory/private.md": "p",
                "memory/deep/private.md": "q",
                "memory/drafts/d.md": "d",
                "memory/repo/.git/config": "",
                "memory/repo/own.tmp.md": "o",
            }
        )
        assert len(find_files(root).files) == 7
        found = find_files(root, options=ScanOptions(gitignore=True))
        assert [file.path for file in found.files] == [
            "memory/a.md",
            "memory/keep.tmp.md",
            "memory/deep/private.md",
            "memory/repo/own.tmp.md",
        ]

    def test_the_rules_of_the_repository_above_hold(self, workspace, tmp_path):
        root = workspace({"a.md": "a", "secret.md": "s"})
        (tmp_path / ".git").mkdir()
        (tmp_path / ".gitignore").write_text("workspace/secret.md\n")
        found = find_files(root, options=ScanOptions(gitignore=True))
        assert [file.path for file in found.files] == ["a.md"]

    def test_a_bad_line_of_gitignore_costs_the_others_nothing(self, workspace):
        root = workspace(
            {
                ".gitignore": b"\xef\xbb\xbffirst.md\na\\\n!\n" + b"*a" * 25 + b"b\nsecret.md\n",
                "a" * 200 + ".md": "a",
                "first.md": "f",
                "secret.md": "s",
            }
        )
        found = find_files(root, options=ScanOptions(gitignore=True))
        assert [file.path for file in found.files] == ["a" * 200 + ".md"]

    def test_a_pipe_in_its_place_is_none(self, workspace):
        root = workspace({"a.md": "a"})
        os.mkfifo(root / ".gitignore")
        assert find_files(root, options=ScanOptions(gitignore=True)).files

    def test_links_do_not_bring_in_what_is_left_out(self, workspace):
        root = workspace(
            {
                ".gitignore": "secret.md\npriv/\n",
                "secret.md": "s",
                "priv/p.md": "p",
                "node_modules/n.md": "n",
                "memory/a.md": "a",
            }
        )
        (root / "memory/l.md").symlink_to("../secret.md")
        (root / "memory/lp").symlink_to("../priv")
        (root / "memory/hid.md").symlink_to("../node_modules/n.md")
        (root / "memory/node_modules").symlink_to("../priv")
        found = find_files(root, options=ScanOptions(gitignore=True))
        assert [file.path for file in found.files] == ["memory/a.md"]

    def test_a_broken_gitignore_leaves_out_nothing(self, workspace):
        root = workspace({".gitignore": b"\xff[\n!\n", "a.md": "a"})
        assert [file.path for file in find_files(root, options=ScanOptions(gitignore=True)).files] == ["a.md"]


def test_a_file_that_is_written_meanwhile_is_read_again(workspace, monkeypatch):
    root = workspace({"a.md": "old"})
    states = []
    fstat = os.fstat

    def grows(descriptor):
        states.append(fstat(descriptor))
        if len(states) == 1:
            (root / "a.md").write_text("new text")
        return fstat(descriptor) if len(states) > 1 else states[0]

    monkeypatch.setattr(os, "fstat", grows)
    assert read_source(SourceFile("a.md", root / "a.md")).text == "new text"


def test_a_file_too_large_is_named(workspace):
    root = workspace({"a.md": ""})
    os.truncate(root / "a.md", (1 << 30) + 1)
    with pytest.raises(UnreadableFile, match="larger than 1,024 MB"):
        read_source(SourceFile("a.md", root / "a.md"))
