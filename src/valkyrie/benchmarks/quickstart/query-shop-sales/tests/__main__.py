"""Grades /app/report.sql by running it on databases made here; what is right is worked out in Python."""

import json
import random
from collections import Counter, defaultdict

from checks import APP, FILES, PYTHON, Checks, read_text, run, same

COLUMNS = ["city", "customers", "buyers", "revenue_cents", "top_product"]
DRIVER = FILES["driver.py"].decode()


def random_shop(seed):
    rng = random.Random(seed)  # noqa: S311
    cities = ["Aarau", "Bern", "bern", "Chur", None, "", "  ", " Genf"]
    customers = [(n, f"customer {n}", rng.choice(cities)) for n in range(1, 25)]
    orders, lines = [], []
    for number in range(1, 60):
        status = rng.choice(["paid", "shipped", "cancelled", "new"])
        orders.append((number, rng.randint(1, 18), f"2026-02-{rng.randint(1, 28):02}", status))
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            product = rng.choice(["cedar", "birch", "alder"])
            lines.append((number, product, rng.randint(1, 5), rng.randint(1, 4) * 50))
    return customers, orders, lines


SHOPS = {
    "no customers": ([], [], []),
    "customers but no orders": ([(1, "A", "Bern"), (2, "B", None)], [], []),
    "a city that is called unknown": (
        [(1, "A", "unknown"), (2, "B", "")],
        [(1, 1, "2026-01-01", "paid"), (2, 2, "2026-01-01", "paid")],
        [(1, "oak", 1, 100), (2, "ash", 2, 100)],
    ),
    "only cancelled orders": (
        [(1, "A", "Bern")],
        [(1, 1, "2026-01-01", "cancelled")],
        [(1, "oak", 1, 100)],
    ),
    "an order without lines": ([(1, "A", "Bern")], [(1, 1, "2026-01-01", "new")], []),
    "equal products and equal cities": (
        [(1, "A", "Chur"), (2, "B", "Bern")],
        [(1, 1, "2026-01-01", "paid"), (2, 2, "2026-01-02", "paid")],
        [(1, "oak", 2, 50), (1, "elm", 1, 100), (2, "yew", 1, 200)],
    ),
    "a free product": ([(1, "A", "Bern")], [(1, 1, "2026-01-01", "paid")], [(1, "gift", 1, 0)]),
    "random shop 1": random_shop(1),
    "random shop 2": random_shop(2),
    "random shop 3": random_shop(3),
}


def expected(customers, orders, lines):
    city_of = {number: city if (city or "").strip(" ") else "unknown" for number, _, city in customers}
    buyers, sales = defaultdict(set), defaultdict(Counter)
    owner = {}
    for number, customer, _, status in orders:
        if status != "cancelled" and customer in city_of:
            owner[number] = customer
            buyers[city_of[customer]].add(customer)
    for order, product, quantity, cents in lines:
        if order in owner:
            sales[city_of[owner[order]]][product] += quantity * cents
    rows = []
    for city, people in Counter(city_of.values()).items():
        top = min(sales[city].items(), key=lambda item: (-item[1], item[0]))[0] if sales[city] else None
        rows.append((city, people, len(buyers[city]), sum(sales[city].values()), top))
    return sorted(rows, key=lambda row: (-row[3], row[0].encode()))


def answer(query, shop):
    tables = dict(zip(("customers", "orders", "order_lines"), shop, strict=True))
    given = {"schema": FILES["schema.sql"].decode(), "query": query, "tables": tables}
    ran = run([*PYTHON, "-c", DRIVER], stdin=json.dumps(given), timeout=30)
    same(ran.code, 0, f"the query ({ran.stderr.strip()[-300:]})")
    found = json.loads(ran.stdout)
    return found["columns"], [tuple(row) for row in found["rows"]]


checks = Checks()
for title, shop in SHOPS.items():
    with checks.check(title):
        columns, rows = answer(read_text(APP / "report.sql"), shop)
        same(columns, COLUMNS, "columns")
        same(rows, expected(*shop), "rows")
checks.reward()
