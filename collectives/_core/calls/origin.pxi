# Origins: the line of the program that started an operation, at the cost of two pointers.

import os
import sys

from collectives import errors
from collectives.text.origin import Origin

cdef extern from *:
    """
    #include <frameobject.h> /* for Python 3.10 */

    #if PY_VERSION_HEX >= 0x030B0000
    #define cc_lasti PyFrame_GetLasti
    #define cc_line(code, at) PyCode_Addr2Line((PyCodeObject *)(code), at)
    #else
    #define cc_lasti PyFrame_GetLineNumber
    #define cc_line(code, at) (at)
    #endif

    /* Find the innermost frame outside the package: a new reference to its code, or NULL, and its
     * place in the code. The line is found only when it is asked for, since that takes longer than
     * all of this in a long function. */
    static PyObject *cc_caller(PyObject *package, int *at)
    {
        PyFrameObject *frame = PyEval_GetFrame(), *back;
        PyCodeObject *code;
        Py_XINCREF(frame);
        while (frame) {
            code = PyFrame_GetCode(frame);
            if (PyUnicode_Tailmatch(code->co_filename, package, 0, PY_SSIZE_T_MAX, -1) != 1) {
                *at = cc_lasti(frame);
                Py_DECREF(frame);
                return (PyObject *)code;
            }
            Py_DECREF(code);
            back = PyFrame_GetBack(frame);
            Py_DECREF(frame);
            frame = back;
        }
        return NULL;
    }
    """
    PyObject *cc_caller(object package, int *at)
    int cc_line(object code, int at)

cdef bint developing = sys.flags.dev_mode
cdef str package_folder = os.path.join(os.path.dirname(errors.__file__), "")
