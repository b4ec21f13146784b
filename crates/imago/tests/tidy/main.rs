//! Layout rules of this repository, as tests.
//!
//! A rule is a pure function from text to findings, so that each is shown here to catch a seeded
//! violation before it is trusted to find none in the tree. What each rule is for is written in
//! CONTRIBUTING.md; a finding says how to mend it. Nothing here needs a network.

mod arrows;
mod circles;
mod commands;
mod dependencies;
mod diagrams;
mod documents;
mod files;
mod finding;
mod layers;
mod licence;
mod tree;
mod wording;
mod words;
