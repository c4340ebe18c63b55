"""Packages on disk: directories, key files, the content store. What is judged is judged by `actors.packages`."""
