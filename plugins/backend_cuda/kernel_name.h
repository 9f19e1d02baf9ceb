// Names of kernels for people: what a trace shows.
#pragma once

#include <string>
#include <string_view>

namespace ananke::cuda {

// Demangled; without return type, namespaces and parameters; template arguments stay; at most 96 characters, the last
// three dots where more were cut. "_ZN6ananke4cuda6kernelIfEEvPKfi" gives "kernel<float>". What is no C++ name stays.
std::string short_kernel_name(const std::string& name);

}  // namespace ananke::cuda
