set -e
python3 - <<'EOF'
import gzip
import hashlib
import io
import random
import tarfile

rng = random.Random(1912)


def noise(size):
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz      \n") for _ in range(size)).encode()


files = {
    "accounts/2024.csv": noise(3000),
    "accounts/2025.csv": noise(5200),
    "letters/2025 in review.txt": noise(2600),
    "letters/to the editor.txt": noise(900),
    "notes.txt": noise(64),
    "photos/index.csv": noise(7000),
    "photos/readme.txt": b"",
    "plans/attic/ladder.txt": noise(1536),
    "plans/cellar.txt": noise(4100),
    "zz/last.bin": rng.randbytes(90_000),
}
manifest = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())

archive, starts = io.BytesIO(), {}
with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
    for name, data in {"MANIFEST.sha256": manifest.encode(), **files}.items():
        starts[name] = tar.offset
        member = tarfile.TarInfo(name)
        member.size, member.mtime = len(data), 1_770_000_000
        tar.addfile(member, io.BytesIO(data))
damaged = bytearray(archive.getvalue())

# One file loses its header and the start of its content, another some bytes in its middle.
header = starts["letters/2025 in review.txt"]
damaged[header : header + 1024] = rng.randbytes(1024)
middle = starts["photos/index.csv"] + 512 + 3000
damaged[middle : middle + 40] = rng.randbytes(40)

# The end is cut off within the last file, which takes up most of the archive.
packed = gzip.compress(bytes(damaged), mtime=0)
with open("nightly.tar.gz", "wb") as file:
    file.write(packed[: len(packed) * 7 // 10])
EOF
