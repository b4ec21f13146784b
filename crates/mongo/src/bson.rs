//! Values of BSON: their order as servers have it, and their form as text.

pub mod ext_json;
pub mod input;
pub mod order;
