//! The evaluation of Morphus (Ghosh et al., "Morphus: Supporting Online Reconfigurations in Sharded
//! NoSQL Systems", §5) with Imago in Morphus' place: its tables and figures, drawn as the paper
//! draws them.
//!
//! [`availability`] is Table 1 and Figs. 4 to 6, which are of the same runs; [`placing`] is Fig. 7;
//! [`scaling`] is Fig. 8. Fig. 9 is [`crate::flows`], and the decisions of Fig. 7 alone are
//! [`crate::placement`]. Data, keys, mix and rate are the paper's unless an option changes them;
//! sizes are what one machine bears. The paper's own figures stand beside those that it prints.

pub mod availability;
