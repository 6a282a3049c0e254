"""`valkyrie run …`."""
