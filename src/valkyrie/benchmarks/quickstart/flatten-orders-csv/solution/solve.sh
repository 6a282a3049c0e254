#!/bin/bash
set -euo pipefail
cat > flatten.py <<'EOF'
"""Flatten a JSON file of orders into CSV."""

import csv
import json
import sys
from decimal import ROUND_HALF_UP, Decimal

HEADER = ["order_id", "placed_at", "customer", "email", "sku", "quantity", "price", "total", "tags"]


def cents(value):
    return str(value.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP))


def rows(orders):
    for order in sorted(orders, key=lambda order: order["id"]):
        customer = order.get("customer") or {}
        start = [order["id"], order.get("placed_at"), customer.get("name"), customer.get("email")]
        tags = ";".join(sorted(set(order.get("tags") or [])))
        for line in order.get("lines") or [None]:
            if line is None:
                yield [*start, None, None, None, None, tags]
                continue
            price = Decimal(str(line["price"]))
            total = price * line["quantity"]
            yield [*start, line["sku"], line["quantity"], cents(price), cents(total), tags]


def main(source, target):
    try:
        with open(source, encoding="utf-8") as file:
            orders = json.load(file, parse_float=Decimal)
        if not isinstance(orders, list):
            raise ValueError("not an array of orders")
    except ValueError as error:
        sys.exit(f"flatten.py: {source}: {error}")
    with open(target, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(rows(orders))


main(*sys.argv[1:])
EOF
python3 flatten.py orders.json orders.csv
cat orders.csv
