"""The two frameworks behind one interface; nothing above this package imports either."""
