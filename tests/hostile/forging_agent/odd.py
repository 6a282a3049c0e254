"""Files that programs stumble over: KIND FOLDER."""

import os
import sys

kind, folder = sys.argv[1:]
os.chdir(folder if os.path.isdir(folder) else "/")


def attempt(make, *words):
    try:
        return make(*words)
    except OSError:
        return None


def write(name, data=b"x"):
    with open(name, "wb") as file:
        file.write(data)


if kind == "deep":
    for _ in range(4096):
        if attempt(os.mkdir, "d" * 20) is not None and not os.path.isdir("d" * 20):
            break
        os.chdir("d" * 20)
    attempt(write, "bottom")
elif kind == "names":
    odd = [
        b"new\nline",
        b"bad\xff\xfe",
        b"\xed\xa0\x80",
        b"\x1b[31mred",
        b"x" * 255,
        b"-rf",
        b"--checkpoint-action=exec=sh",
        b" ",
        b"a\\b",
        b"'\"",
        b"*",
        b"\xe2\x80\xae",
        b"\x7f\x01",
        b".wh.answer.txt",
        b".wh..wh..opq",
        b"...",
        b"~root",
        "e\u0301".encode(),
        "\u00e9".encode(),
    ]
    for name in odd:
        attempt(write, name)
        attempt(os.symlink, name, b"l" + name[:250])
    for name in (b"dir\n" + b"y" * 200, b"dir\xff"):
        attempt(os.mkdir, name)
        attempt(write, name + b"/" + b"z" * 255)
elif kind == "many":
    for number in range(10):
        os.makedirs(f"many/{number}", exist_ok=True)
        for file in range(500):
            attempt(write, f"many/{number}/{file}", b"")
elif kind == "inodes":
    os.makedirs("inodes", exist_ok=True)
    write("inodes/first", b"")
    for number in range(30_000):
        try:
            os.link(f"inodes/{'first' if number < 20_000 else 'next'}", f"inodes/l{number}")
        except OSError:
            try:
                write("inodes/next", b"")
            except OSError:
                break
elif kind == "attributes":
    for name, value in (
        ("user.odd", b"x" * 3000),
        ("security.capability", bytes.fromhex("0100000200000000ffffffff0000000000000000")),
        ("trusted.overlay.opaque", b"y"),
        ("trusted.overlay.redirect", b"/tests"),
        ("user.overlay.redirect", b"/tests"),
        ("user.overlay.opaque", b"y"),
        ("user.overlay.metacopy", b""),
        (
            "system.posix_acl_access",
            bytes.fromhex("0200000001000000ffffffff04000000ffffffff20000000ffffffff"),
        ),
    ):
        for path in (folder, os.path.dirname(folder) or "/") if os.path.isdir(folder) else (folder,):
            attempt(os.setxattr, path, name, value)
