//! A live copy between real clusters: what is at the source in the end is at the destination,
//! whatever the source did meanwhile.
mod contents;
mod definitions;
mod ids;
mod keys;
mod selection;
mod unique;
mod world;
mod writes;
