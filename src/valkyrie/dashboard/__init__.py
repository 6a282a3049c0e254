"""Pages to look at runs, jobs and trials in a browser: server-rendered, live, without a build step."""
