//! InfiniBand subnets: shapes, and the subnet manager.

pub mod subnet_manager;
pub mod topology;
