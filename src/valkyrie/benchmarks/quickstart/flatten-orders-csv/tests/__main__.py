"""Grades /app/flatten.py on inputs of its own."""

from checks import APP, PYTHON, Checks, read_plain, run, same, scratch

HEADER = "order_id,placed_at,customer,email,sku,quantity,price,total,tags\n"

CASES = {
    "no orders": ("[]", ""),
    "a plain order": (
        """[{"id": 7, "placed_at": "2026-05-01T10:00:00Z", "customer":
             {"name": "Mia", "email": "mia@example.org"},
             "lines": [{"sku": "A1", "quantity": 3, "price": 12.5}], "tags": ["gift"]}]""",
        "7,2026-05-01T10:00:00Z,Mia,mia@example.org,A1,3,12.50,37.50,gift\n",
    ),
    "ids are sorted as numbers, lines are not": (
        """[{"id": 10, "placed_at": "b", "customer": {"name": "B"},
             "lines": [{"sku": "Z", "quantity": 1, "price": 1}, {"sku": "A", "quantity": 2, "price": "2"}]},
            {"id": 9, "placed_at": "a", "customer": {"name": "A"},
             "lines": [{"sku": "Q", "quantity": 1, "price": 3}]}]""",
        "9,a,A,,Q,1,3.00,3.00,\n10,b,B,,Z,1,1.00,1.00,\n10,b,B,,A,2,2.00,4.00,\n",
    ),
    "orders without lines": (
        """[{"id": 1, "placed_at": "x", "customer": {"name": "N", "email": null}, "lines": []},
            {"id": 2, "placed_at": "y", "customer": {"name": "M"}, "tags": ["late"]},
            {"id": 3, "placed_at": null, "customer": {"name": "O"}, "lines": null, "tags": null}]""",
        "1,x,N,,,,,,\n2,y,M,,,,,,late\n3,,O,,,,,,\n",
    ),
    "half a cent": (
        """[{"id": 1, "placed_at": "x", "customer": {"name": "N"}, "lines": [
             {"sku": "a", "quantity": 1, "price": 0.125}, {"sku": "b", "quantity": 3, "price": "0.005"},
             {"sku": "c", "quantity": 1, "price": 1.005}, {"sku": "d", "quantity": 1, "price": -0.125},
             {"sku": "e", "quantity": 3, "price": 0.1}, {"sku": "f", "quantity": 0, "price": 2.675},
             {"sku": "g", "quantity": 1000, "price": "0.0004"},
             {"sku": "h", "quantity": 2, "price": 1e3}]}]""",
        "1,x,N,,a,1,0.13,0.13,\n1,x,N,,b,3,0.01,0.02,\n1,x,N,,c,1,1.01,1.01,\n1,x,N,,d,1,-0.13,-0.13,\n"
        "1,x,N,,e,3,0.10,0.30,\n1,x,N,,f,0,2.68,0.00,\n1,x,N,,g,1000,0.00,0.40,\n1,x,N,,h,2,1000.00,2000.00,\n",
    ),
    "quoting": (
        """[{"id": 1, "placed_at": "x", "customer": {"name": "Weiß, \\"Bo\\"", "email": "a b@example.org"},
             "lines": [{"sku": "one\\ntwo", "quantity": 1, "price": 5}], "tags": ["a,b", "semi"]},
            {"id": 2, "placed_at": "x", "customer": {"name": " 木村 "},
             "lines": [{"sku": "'q'", "quantity": 1, "price": 5}]}]""",
        '1,x,"Weiß, ""Bo""",a b@example.org,"one\ntwo",1,5.00,5.00,"a,b;semi"\n'
        "2,x, 木村 ,,'q',1,5.00,5.00,\n",
    ),
    "tags": (
        """[{"id": 1, "placed_at": "x", "customer": {"name": "N"}, "lines": [],
             "tags": ["red", "Blue", "red", "azure"]},
            {"id": 2, "placed_at": "x", "customer": {"name": "N"}, "lines": [], "tags": []}]""",
        "1,x,N,,,,,,Blue;azure;red\n2,x,N,,,,,,\n",
    ),
}
BAD = {"not JSON": "[{", "an object": '{"id": 1}', "empty": "", "a string": '"orders"'}


def flatten(source, target):
    return run([*PYTHON, APP / "flatten.py", source, target])


checks = Checks()
for title, (text, rows) in CASES.items():
    with checks.check(title), scratch() as folder:
        source, target = folder / "in.json", folder / "out.csv"
        source.write_text(text, encoding="utf-8")
        ran = flatten(source, target)
        same(ran.code, 0, f"exit code ({ran.stderr[-300:]})")
        same(read_plain(target).decode(), HEADER + rows, "output")
for title, text in BAD.items():
    with checks.check(f"bad input: {title}"), scratch() as folder:
        source, target, kept = (folder / name for name in ("in.json", "out.csv", "kept.csv"))
        source.write_text(text)
        kept.write_text("as it was\n")
        kept.chmod(0o666)
        for output in (target, kept):
            ran = flatten(source, output)
            same(ran.code, 1, "exit code")
            assert ran.stderr.strip(), "no message"
        assert not target.exists(), "an output file was made"
        same(read_plain(kept).decode(), "as it was\n", "the file that was there")
checks.reward()
