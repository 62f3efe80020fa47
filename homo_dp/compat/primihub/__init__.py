"""PrimiHub: task files, tasks in Python, names of parameters, registries of data sets."""
