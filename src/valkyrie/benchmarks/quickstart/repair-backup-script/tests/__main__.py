"""Grades /app/backup.sh on folders of its own."""

import io
import stat
import tarfile
from contextlib import contextmanager

from checks import APP, MAX_FILE, Checks, read_plain, run, same, scratch

SCRIPT = APP / "backup.sh"

ODD_NAMES = {
    "plain.txt": b"plain\n",
    "two words.txt": b"blank\n",
    ".hidden": b"hidden\n",
    "-rf": b"dash\n",
    "sub/deep er/file": b"deep\n",
    "sub/.also hidden": b"",
    "star*.txt": b"glob\n",
    "line\nbreak": b"break\n",
    "[x] 'quoted' \"twice\"": b"quotes\n",
    "back\\slash": b"slash\n",
}


@contextmanager
def folder_of(files, name="data"):
    with scratch() as folder:
        source = folder / name
        source.mkdir()
        for relative, content in files.items():
            (source / relative).parent.mkdir(parents=True, exist_ok=True)
            (source / relative).write_bytes(content)
        yield source


def packed(archive):
    with tarfile.open(fileobj=io.BytesIO(read_plain(archive)), mode="r:gz") as tar:
        files = {}
        for member in tar:
            assert len(files) <= 100 and member.size <= MAX_FILE, "more is packed than there was"
            if member.isfile():
                name = member.name.removeprefix("./")
                assert name not in files, f"{name!r} is packed twice"
                files[name] = tar.extractfile(member).read()
        return files


def back_up(source, target, cwd):
    ran = run([SCRIPT, source, target], cwd=cwd)
    same(ran.code, 0, f"exit code ({ran.stderr.strip()[-300:]})")
    return ran.stdout


checks = Checks()
with checks.check("odd file names"), folder_of(ODD_NAMES) as source:
    target = source.parent / "kept"
    same(back_up(source, target, source.parent).strip(), str(len(ODD_NAMES)), "count")
    same(packed(target / "data.tar.gz"), ODD_NAMES, "archive")
with checks.check("one number and nothing else is printed"), folder_of({"a": b"1", "b": b"2"}) as source:
    same(back_up(source, source.parent / "kept", source.parent), "2\n", "output")
with checks.check("an empty folder"), folder_of({}) as source:
    same(back_up(source, source.parent / "kept", source.parent), "0\n", "output")
    same(packed(source.parent / "kept" / "data.tar.gz"), {}, "archive")
with checks.check("relative paths and trailing slashes"), folder_of({"x": b"y"}, "my data") as source:
    same(back_up("my data//", "deep er/kept/", source.parent), "1\n", "output")
    same(packed(source.parent / "deep er" / "kept" / "my data.tar.gz"), {"x": b"y"}, "archive")
with checks.check("a folder with a leading dash"), folder_of({"x": b"y"}, "-v") as source:
    same(back_up("-v", "-kept", source.parent), "1\n", "output")
    same(packed(source.parent / "-kept" / "-v.tar.gz"), {"x": b"y"}, "archive")
with checks.check("old archives are kept, three of them"), folder_of({"n": b""}) as source:
    target = source.parent / "kept"
    for number in range(1, 7):
        (source / "n").write_bytes(str(number).encode())
        back_up(source, target, source.parent)
        names = ["data.tar.gz", "data.tar.gz.1", "data.tar.gz.2", "data.tar.gz.3"][:number]
        same(sorted(path.name for path in target.iterdir()), names, f"names after {number} backups")
        for age, name in enumerate(names):
            same(packed(target / name), {"n": str(number - age).encode()}, f"{name} after {number} backups")
with checks.check("only the owner may read it"), folder_of({"a": b"1"}) as source:
    target = source.parent / "kept"
    for _ in range(2):
        back_up(source, target, source.parent)
    for path in target.iterdir():
        same(oct(stat.S_IMODE(path.lstat().st_mode)), "0o600", f"mode of {path.name}")
with checks.check("no such folder"), folder_of({"a": b"1"}) as source:
    target = source.parent / "kept"
    for bad in (source.parent / "missing", source / "a"):
        ran = run([SCRIPT, bad, target], cwd=source.parent)
        same((ran.code, ran.stdout), (1, ""), "exit code and output")
        assert ran.stderr.strip(), "no message"
        assert not target.exists(), "the target was made"
with checks.check("wrong number of arguments"), folder_of({}) as source:
    for arguments in ([], [source], [source, source.parent / "kept", "more"]):
        ran = run([SCRIPT, *arguments], cwd=source.parent)
        same((ran.code, ran.stdout), (2, ""), "exit code and output")
        assert ran.stderr.strip(), "no message"
checks.reward()
