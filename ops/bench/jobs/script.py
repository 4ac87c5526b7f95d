"""The script that `parallax profile` and `parallax plan` are given: that of a race, for the task in the file named."""

from ops.bench.race.systems.parallax import main

if __name__ == "__main__":
    main()
