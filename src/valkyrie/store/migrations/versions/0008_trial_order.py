"""An index of a run's trials in their order, so that they can be read page by page."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("trial_order", "trial", ["run_id", "position"])


def downgrade() -> None:
    op.drop_index("trial_order", "trial")
