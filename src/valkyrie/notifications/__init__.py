"""What is told to the outside about a run: Slack texts, signed webhooks, a Lambda call, the results file.

Table `hook` is the outbox (valkyrie.store.notifications): a message is written down in the transaction that
makes it due, sent by an executor afterwards, and how that went is recorded. None of it changes a run.
"""
