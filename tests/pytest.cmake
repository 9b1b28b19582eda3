# SPDX-License-Identifier: MIT
# add_pytests(LABEL TIMEOUT): each test_NAME.py of the directory becomes the test LABEL/NAME, run by pytest on this build.
# ZC_PYTHON (environment or cache) names the interpreter; else it is the first of these that has pytest.
set(ZC_PYTHON "$ENV{ZC_PYTHON}" CACHE FILEPATH "python3 that has pytest")

function(add_pytests label timeout)
	set(python ${ZC_PYTHON})
	find_program(path_python python3 NO_CACHE REQUIRED)
	foreach(candidate ${path_python} /usr/bin/python3)
		if(NOT python)
			execute_process(COMMAND ${candidate} -c "import pytest" RESULT_VARIABLE lacks ERROR_QUIET)
			if(lacks EQUAL 0)
				set(python ${candidate})
			endif()
		endif()
	endforeach()
	if(NOT python)
		message(WARNING "No python3 with pytest was found (Debian package python3-pytest): tests/${label} will fail.")
		set(python ${path_python})
	endif()
	file(GLOB sources CONFIGURE_DEPENDS test_*.py)
	foreach(source ${sources})
		get_filename_component(name ${source} NAME_WE)
		string(REGEX REPLACE "^test_" "" name ${name})
		add_test(NAME ${label}/${name} COMMAND ${python} -m pytest -q -p no:cacheprovider
			--basetemp ${CMAKE_CURRENT_BINARY_DIR}/${name} ${source})
		set_tests_properties(${label}/${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout}
			ENVIRONMENT "ZC_BUILD=${CMAKE_BINARY_DIR};ZC_CC=${CMAKE_C_COMPILER};PYTHONDONTWRITEBYTECODE=1")
	endforeach()
endfunction()
