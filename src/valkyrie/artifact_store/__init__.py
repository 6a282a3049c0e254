"""Where what runs leave behind is kept besides an executor's own disk: artifacts and logs."""
