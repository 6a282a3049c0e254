"""Looking for what is wrong in specs, skills, task directories and agents before anything runs."""
