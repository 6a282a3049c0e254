"""Jobs as people and programs see them: tables, documents, the live screen, the tree of logs."""
