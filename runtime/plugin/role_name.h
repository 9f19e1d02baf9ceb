// The roles' C++ classes (runtime/roles/) and the names they bear in notes, descriptors, messages and the job.
#pragma once

namespace ananke {

class Backend;
class Kernels;
class Parameters;
class Experts;
class Activations;
class Optimizer;
class Batches;
class Check;
class Observer;

template <class Role>
inline constexpr const char* role_name = nullptr;
template <>
inline constexpr const char* role_name<Backend> = "backend";
template <>
inline constexpr const char* role_name<Kernels> = "kernels";
template <>
inline constexpr const char* role_name<Parameters> = "parameters";
template <>
inline constexpr const char* role_name<Experts> = "experts";
template <>
inline constexpr const char* role_name<Activations> = "activations";
template <>
inline constexpr const char* role_name<Optimizer> = "optimizer";
template <>
inline constexpr const char* role_name<Batches> = "batches";
template <>
inline constexpr const char* role_name<Check> = "check";
template <>
inline constexpr const char* role_name<Observer> = "observer";

inline constexpr const char* all_role_names[] = {"backend",   "kernels", "parameters", "experts", "activations",
                                                 "optimizer", "batches", "check",      "observer"};

}  // namespace ananke
