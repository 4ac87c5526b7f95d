"""The script of `parallax profile` and `parallax plan`: the script of a race, for the task in the file named."""

from ops.bench.race.systems.parallax import main

if __name__ == "__main__":
    main()
