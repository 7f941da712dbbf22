"""`python -m attentiondrop` is the command `attentiondrop`."""

from .cli.main import main

raise SystemExit(main())
