"""The graders a spec can name without a plugin, one module per thing they look at."""
