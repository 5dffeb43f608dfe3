"""Stand-ins and makers that tests of several areas share."""
