//! `imago store` as its users meet it: its clients' histories while its design changes and its process or
//! sites die, the usual tools, and what it says when it cannot be done.

#![allow(clippy::print_stdout, reason = "a test prints its seed and what it did")]

mod adapt;
mod adapt_apart;
mod apart;
mod backup;
mod change;
mod counters;
mod crashes;
mod deaths;
mod drain;
mod full_disk;
mod heat;
mod limits;
mod memory;
mod misuse;
mod parts;
mod pins;
mod processes;
mod proof;
mod replicas;
mod returns;
mod served;
mod takeover;
mod token;
mod tools;
mod topic;
mod transactions;
mod transfers;
mod unread;
