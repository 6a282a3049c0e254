#!/bin/bash
set -euo pipefail
cat > report.sql <<'EOF'
WITH people AS (
    SELECT id, CASE WHEN trim(coalesce(city, '')) = '' THEN 'unknown' ELSE city END AS city
    FROM customers
),
counted AS (
    SELECT o.id, o.customer_id FROM orders AS o WHERE o.status <> 'cancelled'
),
product_sales AS (
    SELECT p.city, l.product, sum(l.quantity * l.unit_cents) AS cents
    FROM people AS p
    JOIN counted AS o ON o.customer_id = p.id
    JOIN order_lines AS l ON l.order_id = o.id
    GROUP BY p.city, l.product
),
ranked AS (
    SELECT city, product, cents,
           row_number() OVER (PARTITION BY city ORDER BY cents DESC, product) AS place
    FROM product_sales
)
SELECT p.city AS city,
       count(*) AS customers,
       sum(EXISTS (SELECT 1 FROM counted AS o WHERE o.customer_id = p.id)) AS buyers,
       coalesce((SELECT sum(s.cents) FROM product_sales AS s WHERE s.city = p.city), 0) AS revenue_cents,
       (SELECT r.product FROM ranked AS r WHERE r.city = p.city AND r.place = 1) AS top_product
FROM people AS p
GROUP BY p.city
ORDER BY revenue_cents DESC, city;
EOF
python3 - <<'EOF'
import sqlite3
for row in sqlite3.connect("shop.db").execute(open("report.sql").read()):
    print(row)
EOF
