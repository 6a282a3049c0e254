set -e
python3 - <<'EOF'
import random
import sqlite3

rng = random.Random(41)
shop = sqlite3.connect("shop.db")
shop.executescript(open("schema.sql").read())
cities = ["Luzern", "Basel", "Zug", "Thun", "Visp", None, ""]
names = ["Ada", "Ben", "Cleo", "Dora", "Emil", "Fritz", "Gina", "Hugo", "Ida", "Jon", "Kim", "Lea"]
for number in range(1, 41):
    shop.execute("INSERT INTO customers VALUES (?, ?, ?)", (number, rng.choice(names), rng.choice(cities)))
for number in range(1, 121):
    day = f"2026-{rng.randint(1, 6):02}-{rng.randint(1, 28):02}"
    status = rng.choice(["new", "paid", "paid", "shipped", "shipped", "cancelled"])
    shop.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", (number, rng.randint(1, 34), day, status))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        product = rng.choice(["kettle", "lamp", "ladder", "bucket", "broom", "saw"])
        line = (number, product, rng.randint(1, 4), rng.choice([450, 990, 1250, 2999, 7900]))
        shop.execute("INSERT INTO order_lines VALUES (?, ?, ?, ?)", line)
shop.commit()
EOF
