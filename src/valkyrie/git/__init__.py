"""Git repositories of others: fetched at one commit, nothing in them executed, time and disk bounded."""
