//! BSON values: their sort order, equal to that of MongoDB servers, and their text form, extended JSON.

pub mod ext_json;
pub mod input;
pub mod order;
