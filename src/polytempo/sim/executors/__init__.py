"""Where the work of a run is computed: on threads of this process, or elsewhere. The simulator knows the interface only
(``executor.py``)."""
