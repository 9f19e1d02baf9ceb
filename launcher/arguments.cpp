#include "launcher/arguments.h"

#include <boost/program_options.hpp>

#include "runtime/base/error.h"
#include "runtime/base/nearest.h"

namespace ananke {

namespace po = boost::program_options;

void read_arguments(const std::vector<std::string>& words, const po::options_description& options,
                    const po::positional_options_description& positions, po::variables_map* values) {
  try {
    const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
    po::store(po::command_line_parser(words).options(options).positional(positions).style(style).run(), *values);
    po::notify(*values);
  } catch (const po::unknown_option& error) {
    std::vector<std::string> names;
    for (const auto& option : options.options()) names.push_back("--" + option->long_name());
    fail(ErrorKind::usage, "there is no option '{}'{}", error.get_option_name(),
         suggestion(error.get_option_name(), names));
  } catch (const po::too_many_positional_options_error&) {
    fail(ErrorKind::usage, "too many words without an option's name; quote a word that has blanks");
  } catch (const po::error& error) {
    fail(ErrorKind::usage, "{}", error.what());
  }
}

}  // namespace ananke
