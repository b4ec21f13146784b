//! Tuning: from what clients asked for in the past, and what configurations were measured to serve, to advice when a
//! cluster's configuration should change, and to what (SOPHIA).
//!
//! A [`trace`] says what clients asked for, [`measurements`] what each configuration serves of it; [`advice`] puts both
//! together by the decisions of `imago_plan::tune`. A [`tuner`] does that interval by interval, beside a cluster that
//! [`controller`] looks at and changes.
//!
//! This crate must not know the command line, nor how servers are started.

pub mod advice;
pub mod basis;
pub mod cassandra;
pub mod classes;
pub mod cluster;
pub mod configurations;
pub mod controller;
pub mod decisions;
pub mod design;
pub mod dimensions;
pub mod error;
pub mod lines;
pub mod measurements;
pub mod optima;
pub mod redis;
mod table;
pub mod trace;
pub mod tuner;
