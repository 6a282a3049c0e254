"""`valkyrie init`: the files of a first project, and how they are written."""
