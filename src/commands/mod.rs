//! One file for each command: its flags and what it does.
