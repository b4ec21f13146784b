//! Copies that are inject: processes killed, servers lost, networks cut, logs overrun.
//!
//! Every test runs the real program against real servers under a recorded load, and ends with the
//! same proof: `imago verify` finds no difference, and the destination holds every acknowledged
//! write and nothing else (`imago load check`).

mod full_disk;
mod kills;
mod oplog;
mod program;
mod replays;
mod servers;
mod sharing;
mod stage;
mod steering;
