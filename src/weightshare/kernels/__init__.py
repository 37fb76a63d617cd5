"""Compiled inner loops. They see plain arrays; the modules that call them know what these mean."""
