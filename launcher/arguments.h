// Command lines by Boost.Program_options, strictly: no abbreviations, every error an Error(usage).
#pragma once

#include <string>
#include <vector>

namespace boost::program_options {
class options_description;
class positional_options_description;
class variables_map;
}  // namespace boost::program_options

namespace ananke {

// Throws Error(usage) naming the word and, for a mistyped option, the nearest one.
void read_arguments(const std::vector<std::string>& words, const boost::program_options::options_description& options,
                    const boost::program_options::positional_options_description& positions,
                    boost::program_options::variables_map* values);

}  // namespace ananke
