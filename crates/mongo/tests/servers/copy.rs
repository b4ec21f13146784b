//! A live copy between real clusters: in the end the destination equals the source, with all
//! changes that were made meanwhile.
mod contents;
mod definitions;
mod ids;
mod keys;
mod selection;
mod sharded_source;
mod unique;
mod world;
mod writes;
